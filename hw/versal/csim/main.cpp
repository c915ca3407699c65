// The native machine as a stand-alone program: for sanitizers, which need a process of their own, and for use without
// Python.
//
//   rsn-csim IMAGE [--mme FILE] [--ddr FILE] [--lpddr FILE] [--ddr-bytes N] [--lpddr-bytes N] [--dump-ddr FILE]
//            [--mop-fifo-depth N] [--uop-fifo-depth N] [--stalls SEED] [--array]
//
// IMAGE and --mme are what `rsn asm --raw --mme` writes. --ddr and --lpddr: what the memories hold, float32;
// --ddr-bytes: how large they are, beyond that 0. --stalls: a number from 1, see docs/csim.md. --array: a thread to each
// of the 384 AIE tiles. Exits with 0 when the program has ended, else with 1 and the report of csim.h on stderr.
// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <cstdlib>
#include <algorithm>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "csim.h"

namespace {

std::string contents(const std::string &path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) throw std::runtime_error("cannot read " + path);
    return {std::istreambuf_iterator<char>(file), {}};
}

template <typename T>
std::vector<T> elements(const std::string &bytes, std::size_t at_least = 0) {
    std::vector<T> out(std::max(bytes.size(), at_least) / sizeof(T));
    std::copy_n(bytes.data(), bytes.size() / sizeof(T) * sizeof(T), reinterpret_cast<char *>(out.data()));
    return out;
}

// {"0": [word, ...], ...}: numbers in quotes are MMEs, others the words of the MME before them.
void read_ops(const std::string &json, std::vector<std::uint32_t> (&ops)[RSN_CSIM_MMES]) {
    constexpr char digits[] = "0123456789";
    unsigned long mme = 0;
    std::size_t at, end = 0;
    while ((at = json.find_first_of(digits, end)) != std::string::npos) {
        end = std::min(json.find_first_not_of(digits, at), json.size());
        const unsigned long number = std::stoul(json.substr(at, end - at));
        if (at && json[at - 1] == '"') mme = number;
        else if (mme < RSN_CSIM_MMES) ops[mme].push_back(static_cast<std::uint32_t>(number));
    }
}

int run(const std::string &image_path, std::map<std::string, std::string> &given) {
    const auto bank = [&given](const std::string &name) {
        const auto bytes = given.count("--" + name + "-bytes") ? std::stoull(given["--" + name + "-bytes"]) : 0;
        return elements<float>(given.count("--" + name) ? contents(given["--" + name]) : "", bytes);
    };
    const auto number = [&given](const char *name) {
        return given.count(name) ? std::stoull(given[name]) : 0;
    };
    const auto fifo_depth = [&number](const char *name) {
        const auto value = number(name);
        if (value >> 32) throw std::out_of_range(std::string(name) + " is more than 32 bits can say");
        return static_cast<std::uint32_t>(value);
    };
    const auto image = elements<std::uint32_t>(contents(image_path));
    auto ddr = bank("ddr"), lpddr = bank("lpddr");
    std::vector<std::uint32_t> ops[RSN_CSIM_MMES];
    if (given.count("--mme")) read_ops(contents(given["--mme"]), ops);
    rsn_csim_program program = {};
    program.image = image.data();
    program.image_words = image.size();
    for (int m = 0; m < RSN_CSIM_MMES; ++m) {
        program.ops[m] = ops[m].data();
        program.op_counts[m] = static_cast<std::uint32_t>(ops[m].size());
    }
    program.ddr = ddr.data();
    program.ddr_floats = ddr.size();
    program.lpddr = lpddr.data();
    program.lpddr_floats = lpddr.size();
    program.mop_fifo_depth = fifo_depth("--mop-fifo-depth");
    program.uop_fifo_depth = fifo_depth("--uop-fifo-depth");
    program.stalls = number("--stalls");
    program.array = given.count("--array") != 0;
    rsn_csim *machine = nullptr;
    if (rsn_csim_start(&program, &machine)) throw std::runtime_error("no memory for a run");
    int state = RSN_CSIM_RUNNING;
    while (state == RSN_CSIM_RUNNING) state = rsn_csim_wait(machine, 1000);
    bool left = false;
    std::istringstream report(rsn_csim_report(machine));
    for (std::string kind, line; report >> kind && std::getline(report, line);) {
        std::istringstream fields(line);
        std::string stream;
        unsigned long long depth, written = 0, taken = 0;
        if (kind == "stream") std::getline(fields >> std::ws, stream, '\t') >> depth >> written >> taken;
        left |= written != taken;
        if (state != RSN_CSIM_DONE || written != taken) std::cerr << kind << line << '\n';
    }
    rsn_csim_free(machine);
    if (given.count("--dump-ddr")) {
        std::ofstream file(given["--dump-ddr"], std::ios::binary);
        const auto size = static_cast<std::streamsize>(ddr.size() * sizeof(float));
        file.write(reinterpret_cast<const char *>(ddr.data()), size);
        if (!file.flush()) throw std::runtime_error("cannot write " + given["--dump-ddr"]);
    }
    return state == RSN_CSIM_DONE && !left ? 0 : 1;
}

}  // namespace

int main(int count, char **words) try {
    std::map<std::string, std::string> given;
    const std::string known =
        " --mme --ddr --lpddr --ddr-bytes --lpddr-bytes --dump-ddr --mop-fifo-depth --uop-fifo-depth --stalls ";
    for (int i = 2; i < count; ++i) {
        const std::string name = words[i];
        if (name == "--array") given[name] = "1";
        else if (known.find(" " + name + " ") != std::string::npos && i + 1 < count) given[name] = words[++i];
        else count = 0;
    }
    if (count < 2) {
        std::cerr << "usage: rsn-csim IMAGE [--mme FILE] [--ddr FILE] [--lpddr FILE] [--ddr-bytes N] [--lpddr-bytes N] "
                     "[--dump-ddr FILE] [--mop-fifo-depth N] [--uop-fifo-depth N] [--stalls SEED] [--array]\n";
        return 2;
    }
    return run(words[1], given);
} catch (const std::exception &e) {
    std::cerr << "error: " << e.what() << '\n';
    return 1;
}
