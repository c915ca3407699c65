#!/bin/sh
# Installs rsn on a board from this folder. It takes no network, no pip and no C compiler.
#
#   sh install.sh [--prefix DIR] [--bin DIR] [--python PROGRAM]
#   sh install.sh --uninstall [--prefix DIR] [--bin DIR]
#
#   --prefix DIR      the folder to install to   [root: /opt/rsn; others: ~/.local/share/rsn]
#   --bin DIR         the folder of the command  [root: /usr/bin, where ssh finds it; others: ~/.local/bin]
#   --python PROGRAM  the Python to use          [the one in this folder, else python3 of the right version]
#
# Installing again replaces what is there, and keeps settings.sh.
# SPDX-License-Identifier: Apache-2.0
set -eu
umask 022

here=$(unset CDPATH; cd -- "$(dirname -- "$0")" && pwd)
say() { printf '%s\n' "$*"; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

[ -f "$here/bundle.sh" ] || die "$here has no bundle.sh: run install.sh in the folder that the archive unpacks to"
. "$here/bundle.sh" # VERSION, PYTHON (such as 3.11), MACHINE, OWN_PYTHON (yes, no)

if [ "$(id -u)" = 0 ]; then
    prefix=/opt/rsn bin=/usr/bin
else
    prefix=$HOME/.local/share/rsn bin=$HOME/.local/bin
fi
chosen='' uninstall=no
while [ $# -gt 0 ]; do
    case $1 in
    --prefix | --bin | --python)
        [ $# -gt 1 ] || die "$1 takes a value; sh install.sh --help tells which"
        case $1 in --prefix) prefix=$2 ;; --bin) bin=$2 ;; --python) chosen=$2 ;; esac
        shift 2 ;;
    --uninstall) uninstall=yes; shift ;;
    -h | --help) sed -n 's/^# \{0,1\}//; 2,11p' "$0"; exit 0 ;;
    *) die "unknown option $1; sh install.sh --help lists the options" ;;
    esac
done
case $prefix in /*) ;; *) prefix=$PWD/$prefix ;; esac
case $bin in /*) ;; *) bin=$PWD/$bin ;; esac
while [ "$prefix" != "${prefix%/}" ]; do prefix=${prefix%/}; done # completion of names adds a slash
while [ "$bin" != "${bin%/}" ]; do bin=${bin%/}; done
case $prefix$bin in *[!A-Za-z0-9/._+-]*) die "'$prefix' or '$bin': letters, digits and / . _ + - only, please" ;; esac
case $prefix in '' | */. | */..) die "'$prefix/' cannot be the folder of rsn alone: name another one with --prefix" ;; esac
[ ! -L "$prefix" ] || die "$prefix is a link: name the folder that it points to with --prefix"
command=$bin/rsn
new=$prefix.rsn-new old=$prefix.rsn-old # names that nobody else gives

ours() { [ "$(readlink "$command" 2>/dev/null || true)" = "$prefix/bin/rsn" ]; }

if [ ! -e "$prefix" ] && [ -f "$old/bundle.sh" ]; then mv "$old" "$prefix"; fi # an installation that was interrupted
if [ -e "$prefix" ] && [ ! -f "$prefix/bundle.sh" ] && [ -n "$(ls -A "$prefix" 2>/dev/null || true)" ]; then
    die "$prefix is there and is no installation of rsn: choose another folder with --prefix"
fi

if [ "$uninstall" = yes ]; then
    [ -f "$prefix/bundle.sh" ] || die "there is no rsn in $prefix; --prefix names another folder"
    if ours; then rm -f "$command"; fi
    rm -rf "$prefix" "$new" "$old"
    say "rsn is removed from $prefix. Weights that were sent to this computer are still in ~/.cache/rsn"
    exit 0
fi

# -- before anything is changed

machine=$(uname -m)
[ "$machine" = "$MACHINE" ] || die "this bundle is for $MACHINE, and this computer is $machine: on the desktop, make \
board-bundle BOARD_MACHINE=$machine"
if { [ -e "$command" ] || [ -L "$command" ]; } && ! ours; then
    die "$command is there and belongs to another installation: remove it, or choose another folder with --bin"
fi
say "rsn $VERSION for $MACHINE -> $prefix"
(cd "$here" && sha256sum -c SHA256SUMS >/dev/null 2>&1) || die "a file of the bundle is damaged or missing (sha256sum -c \
SHA256SUMS tells which): copy the archive again, and unpack it again"
say "  checksums   ok"

for parent in "$bin" "$(dirname "$prefix")"; do
    while [ ! -d "$parent" ]; do parent=$(dirname "$parent"); done
    [ -w "$parent" ] || die "$parent cannot be written: become root, or choose other folders with --prefix and --bin"
done
free=$(df -Pk "$parent" 2>/dev/null | awk 'NR == 2 { print $4 }')
case $free in '' | *[!0-9]*) free=1000000 ;; esac # df cannot tell
[ "$free" -ge 200000 ] || die "$parent has only $((free / 1000)) MB free, and rsn takes 200: make room, enlarge the \
partition (docs/boards.md, step 2), or choose another folder with --prefix"

rm -rf "$new"
mkdir -p "$new/bin" "$new/lib/python$PYTHON/site-packages"
trap 'rm -rf "$new"' EXIT
trap 'exit 1' INT TERM HUP

# -- which Python

# What a Python says of itself: version, machine, the program itself (of a virtual environment: the one behind it).
asks='import platform, sys
print("%d.%d" % sys.version_info[:2], platform.machine(), getattr(sys, "_base_executable", sys.executable))'
# Modules that some images leave out of the standard library.
needs='import ctypes, decimal, hashlib, json, mmap, multiprocessing, select, tomllib, unicodedata, zipfile, zlib'
python='' libraries='' refused=''

# -I: what lies in the current folder, or in PYTHONPATH, is not to be taken for a module.
try() { # PROGRAM: use it if it will do; otherwise say why not, in $refused
    said=$("$1" -I -c "$asks" 2>&1) || { refused="$1 does not run: $(printf '%s' "$said" | tail -n 1)"; return 1; }
    said=$(printf '%s' "$said" | tail -n 1) # warnings come before it
    rest=${said#* }
    [ "${said%% *}" = "$PYTHON" ] || { refused="$1 is Python ${said%% *}, and this bundle takes $PYTHON"; return 1; }
    [ "${rest%% *}" = "$MACHINE" ] || { refused="$1 is built for ${rest%% *}"; return 1; }
    said=$("$1" -I -c "$needs" 2>&1) || { refused="$1 is incomplete: $(printf '%s' "$said" | tail -n 1)"; return 1; }
    python=${rest#* }
}

if [ -n "$chosen" ]; then
    try "$chosen" || die "$refused"
elif [ "$OWN_PYTHON" = yes ]; then
    mkdir "$new/python"
    tar -xzf "$here/python.tar.gz" -C "$new/python"
    own=$new/python/bin/python$PYTHON
    if ! try "$own"; then # with the libraries that came with it, where the image lacks one
        LD_LIBRARY_PATH=$new/python/lib/private${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
        export LD_LIBRARY_PATH
        if try "$own"; then libraries=$prefix/python/lib/private; else unset LD_LIBRARY_PATH; fi
    fi
fi
first=$refused
if [ -z "$python" ]; then
    rm -rf "$new/python"
    for program in "python$PYTHON" python3; do
        if command -v "$program" >/dev/null && try "$(command -v "$program")"; then break; fi
    done
fi
[ -n "$python" ] || die "no Python $PYTHON here: ${refused:-there is no python3}${first:+; that of the bundle: $first}. On the \
desktop, make a bundle that brings its own Python (docs/boards.md, step 9), or install Python $PYTHON here"

# -- a virtual environment, made by hand: images lack venv, ensurepip and pip. A wheel is a zip.

ln -s "$python" "$new/bin/python"
printf 'home = %s\ninclude-system-site-packages = false\n' "$(dirname "$python")" >"$new/pyvenv.cfg"
for wheel in "$here"/wheels/*.whl; do
    "$new/bin/python" -I -m zipfile -e "$wheel" "$new/lib/python$PYTHON/site-packages"
done
say "  packages    $(ls "$here/wheels" | sed 's/-[^-]*-[^-]*-[^-]*\.whl$//; s/-/ /' | tr '\n' ',' | sed 's/,$//; s/,/, /g')"

cat >"$new/bin/rsn" <<END
#!/bin/sh
# ssh runs a command without the settings of login scripts: settings.sh has what rsn takes.
. '$prefix/settings.sh'
${libraries:+LD_LIBRARY_PATH=$libraries\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH\}
export LD_LIBRARY_PATH
}exec '$prefix/bin/python' -P -m rsn "\$@"
END
chmod 755 "$new/bin/rsn"
cp "$here/bundle.sh" "$here/install.sh" "$new/"

if [ -f "$prefix/settings.sh" ]; then
    cp "$prefix/settings.sh" "$new/settings.sh"
else
    cat >"$new/settings.sh" <<'END'
# Read by rsn (as sh) whenever it starts, also when ssh starts it. A variable that is already set counts.

# XRT: the folder whose lib/ has its libraries.
[ -n "${XILINX_XRT-}" ] || for folder in /usr /opt/xilinx/xrt; do
    [ ! -e "$folder/lib/libxrt_core.so.2" ] || { export XILINX_XRT="$folder"; break; }
done

# The xclbin of the bitstream that this board has booted: on the first partition of the card.
[ -n "${RSN_XCLBIN-}" ] || for file in /run/media/*/rsn.xclbin /mnt/*/rsn.xclbin /boot/rsn.xclbin; do
    [ ! -f "$file" ] || { export RSN_XCLBIN="$file"; break; }
done

# Where weights that are sent to this board are kept, in rsn/weights.
# export XDG_CACHE_HOME=/mnt/large
END
fi

said=$("$new/bin/python" -P -c 'import rsn.cli.run, rsn.cli.serve_stdio' 2>&1) || die "the packages do not load with \
$python: $(printf '%s' "$said" | tail -n 1)"

# -- in place of the old one

mkdir -p "$bin"
rm -rf "$old"
if [ -e "$prefix" ]; then mv "$prefix" "$old"; fi
mv "$new" "$prefix"
if [ -L "$prefix/bin/python" ]; then # its own Python has moved with it
    case $python in
    "$new"/*)
        python=$prefix${python#"$new"}
        ln -sf "$python" "$prefix/bin/python"
        printf 'home = %s\ninclude-system-site-packages = false\n' "$(dirname "$python")" >"$prefix/pyvenv.cfg" ;;
    esac
fi
rm -rf "$old"
ln -sf "$prefix/bin/rsn" "$command"
say "  Python      $python"
"$prefix/bin/python" -P -m compileall -q "$prefix/lib/python$PYTHON/site-packages/rsn" >/dev/null 2>&1 || true
said=$("$command" --version 2>&1) || die "it does not start: $said"
say "  command     $command ($said)"
case ":$PATH:" in *":$bin:"*) ;; *) say "              $bin is not on PATH: export PATH=$bin:\$PATH" ;; esac
if [ "$bin" != /usr/bin ]; then
    say "              ssh may not find it there; on the desktop: export RSN_REMOTE=$command"
fi
say "  settings    $prefix/settings.sh"
say "next: rsn doctor; from the desktop: rsn doctor ssh://${USER:-root}@ADDRESS-OF-THIS-BOARD"
