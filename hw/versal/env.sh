# Source this before building with AMD's tools:
#   VITIS=/tools/Xilinx/Vitis/2024.1 COMMON_IMAGE=/opt/xilinx-versal-common-v2024.1 . ./env.sh
#
# VITIS         where Vitis is installed                    [/tools/Xilinx/Vitis/2024.1]
# COMMON_IMAGE  the unpacked common image for Versal, for `make package`: Image, rootfs.ext4   [none]
# PLATFORM      the .xpfm of the board                      [the base platform that comes with Vitis]
# SPDX-License-Identifier: Apache-2.0

: "${VITIS:=/tools/Xilinx/Vitis/2024.1}"
if [ -f "$VITIS/settings64.sh" ]; then
    . "$VITIS/settings64.sh"
    : "${PLATFORM:=$VITIS/base_platforms/xilinx_vck190_base_202410_1/xilinx_vck190_base_202410_1.xpfm}"
    [ -f "$PLATFORM" ] || echo "env.sh: no platform at $PLATFORM; set PLATFORM=/path/to/platform.xpfm" >&2
    [ -z "${COMMON_IMAGE:-}" ] || [ -f "$COMMON_IMAGE/Image" ] || echo "env.sh: no Image in $COMMON_IMAGE" >&2
    export VITIS PLATFORM COMMON_IMAGE
else
    echo "env.sh: no Vitis at $VITIS; set VITIS=/path/to/Vitis/2024.1" >&2
fi
