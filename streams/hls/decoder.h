// A decoder whose layers run on one machine, or on one for a prompt and one for a step: what the host does before and
// behind the layers. The program for a board and the native run share it; each has a class for its machines, with
//     write(tensor, bytes), read(tensor, bytes): of the whole tensor, as it lies in memory; and
//     run(length): of so many rows, if they are a size of the machine.
// SPDX-License-Identifier: Apache-2.0
#ifndef RSN_STREAMS_DECODER_H
#define RSN_STREAMS_DECODER_H

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace rsn::decoder {

constexpr std::size_t NONE = static_cast<std::size_t>(-1);

// A tensor of a machine. channels: memory channels in which it lies. at: where its first content is in the file of the
// model; NONE for zeros.
struct Tensor {
    const char *name;
    std::size_t bytes, channels, at;
};

// An argument of a machine's kernel: what lies of a tensor in one of its channels.
struct Argument {
    std::size_t tensor, channel;
};

// Rows of 32-bit numbers as they lie in a tensor. at: where the file has, for each element of the tensor, the number of
// the element of the rows that it holds (32 bits). elements: of the tensor. width: of a row.
struct Rows {
    std::size_t tensor, at, elements, width;
};

// Rows that depend on their positions alone. at: where they are in the file, position by position from 0 on.
struct Table {
    Rows rows;
    std::size_t at;
};

// A cache of keys or values. block: bytes of the rows of a head; a machine may have more of them than another one, which
// are behind those of the sequence.
struct Cache {
    std::size_t tensor, block;
};

// A machine's program. kernel: its name. rows: tokens of a run; at most, if `sized`. tables: what it needs for a
// position. input, result: of all layers; or the result is logits of the row whose number is in the tensor `chosen`,
// which is NONE for none. caches: what the machine of a step takes from that of a prompt.
struct Program {
    const char *kernel;
    std::size_t rows;
    bool sized;
    std::vector<Tensor> tensors;
    std::vector<Argument> arguments;
    std::vector<Table> tables;
    Rows input, result;
    std::size_t chosen;
    std::vector<Cache> caches;
};

// What is before and behind the layers; offsets are in the file, NONE for what the model does not have. embedding: of
// words (vocabulary, width). places: what is added to it (capacity, width). gamma, beta: of the last norm, which
// subtracts the mean if `centred`. head, bias: of the product (vocabulary, width), which the machine computes if there
// is no head. programs: one for all, or that of a
// prompt and that of a step.
struct Model {
    std::size_t width, vocabulary, capacity, bytes;
    std::size_t embedding, places, gamma, beta, head, bias;
    bool centred;
    double eps;
    std::vector<Program> programs;
};

class File {
  public:
    File(const std::string &path, std::size_t bytes) : bytes_(bytes) {
        std::FILE *in = std::fopen(path.c_str(), "rb");
        const bool whole = in && std::fread(bytes_.data(), 1, bytes, in) == bytes;
        if (in) std::fclose(in);
        if (!whole) throw std::runtime_error(path + " is missing, or is not the file of this model");
    }
    template <class T>
    const T *at(std::size_t offset) const {
        return reinterpret_cast<const T *>(bytes_.data() + offset);
    }

  private:
    std::vector<unsigned char> bytes_;
};

template <class Machine>
class Decoder {
  public:
    // make: a machine for a program, with memory of its own. There is one at a time, because a board may hold only one.
    Decoder(const Model &model, const File &file, std::function<std::unique_ptr<Machine>(const Program &)> make)
        : model_(model), file_(file), make_(std::move(make)) {}

    // The most probable answer. A machine for prompts alone takes as many tokens as it has rows; one for all takes a
    // prompt in pieces.
    std::vector<int> generate(const std::vector<int> &prompt, std::size_t count) {
        const Program &first = model_.programs.front(), &step = model_.programs.back();
        if (prompt.empty()) throw std::runtime_error("a prompt without tokens");
        if (!first.sized && prompt.size() != first.rows)
            throw std::runtime_error("the machine is for prompts of another length");
        if (prompt.size() + count > model_.capacity + 1) throw std::runtime_error("the caches have too few rows");
        for (int token : prompt)
            if (token < 0 || static_cast<std::size_t>(token) >= model_.vocabulary)
                throw std::runtime_error("a token that the vocabulary does not have");
        begin(first);
        std::vector<float> last;
        for (std::size_t at = 0; at < prompt.size(); at += first.rows) {
            const auto begin = prompt.begin() + static_cast<std::ptrdiff_t>(at);
            const auto rows = static_cast<std::ptrdiff_t>(std::min(first.rows, prompt.size() - at));
            last = run(first, std::vector<int>(begin, begin + rows), at);
        }
        std::vector<int> answer{most_probable(last.data())};
        if (&first != &step && count > 1) change(first, step);
        for (std::size_t position = prompt.size(); answer.size() < count; ++position)
            answer.push_back(most_probable(run(step, {answer.back()}, position).data()));
        return answer;
    }

    // The machine that has run last.
    Machine &machine() { return *machine_; }

  private:
    void begin(const Program &program) {
        machine_.reset();
        machine_ = make_(program);
        for (std::size_t k = 0; k < program.tensors.size(); ++k) {
            const Tensor &tensor = program.tensors[k];
            const std::vector<unsigned char> zeros(tensor.at == NONE ? tensor.bytes : 0);
            machine_->write(k, tensor.at == NONE ? zeros.data() : file_.template at<unsigned char>(tensor.at));
        }
    }

    // Begin on a second machine, with the caches of the first one.
    void change(const Program &first, const Program &step) {
        std::vector<std::vector<unsigned char>> caches;
        for (const Cache &cache : first.caches) {
            caches.emplace_back(first.tensors[cache.tensor].bytes);
            machine_->read(cache.tensor, caches.back().data());
        }
        begin(step);
        for (std::size_t k = 0; k < caches.size(); ++k) {
            const Cache &from = first.caches[k], &to = step.caches[k];
            std::vector<unsigned char> bytes(step.tensors[to.tensor].bytes);
            for (std::size_t block = 0; block < bytes.size() / to.block; ++block)
                std::memcpy(bytes.data() + block * to.block, caches[k].data() + block * from.block,
                            std::min(from.block, to.block));
            machine_->write(to.tensor, bytes.data());
        }
    }

    // Write rows to a tensor. What it has behind them repeats the last one.
    template <class T>
    void write(const Rows &where, const T *rows, std::size_t count) {
        static_assert(sizeof(T) == 4, "rows of 32-bit numbers");
        std::vector<T> lying(where.elements);
        const auto *from = file_.template at<std::int32_t>(where.at);
        for (std::size_t k = 0; k < lying.size(); ++k) {
            const auto number = static_cast<std::size_t>(from[k]);
            lying[k] = rows[std::min(number / where.width, count - 1) * where.width + number % where.width];
        }
        machine_->write(where.tensor, reinterpret_cast<const unsigned char *>(lying.data()));
    }

    // Run the machine on tokens at positions from `position` on. Returns the last row of the result, or its logits.
    std::vector<float> run(const Program &program, const std::vector<int> &tokens, std::size_t position) {
        const std::size_t width = model_.width;
        for (const Table &table : program.tables)
            write(table.rows, file_.template at<std::uint32_t>(table.at) + position * table.rows.width, tokens.size());
        std::vector<float> rows(tokens.size() * width);
        for (std::size_t row = 0; row < tokens.size(); ++row)
            for (std::size_t k = 0; k < width; ++k) {
                const std::size_t token = static_cast<std::size_t>(tokens[row]);
                float value = file_.template at<float>(model_.embedding)[token * width + k];
                if (model_.places != NONE)
                    value += file_.template at<float>(model_.places)[(position + row) * width + k];
                rows[row * width + k] = value;
            }
        write(program.input, rows.data(), tokens.size());
        const auto chosen = static_cast<std::int32_t>(tokens.size() - 1);
        const std::size_t row = program.chosen == NONE ? tokens.size() - 1 : 0;
        if (program.chosen != NONE)
            machine_->write(program.chosen, reinterpret_cast<const unsigned char *>(&chosen));
        machine_->run(tokens.size());
        std::vector<float> lying(program.result.elements), last(program.result.width);
        machine_->read(program.result.tensor, reinterpret_cast<unsigned char *>(lying.data()));
        const auto *to = file_.template at<std::int32_t>(program.result.at);
        // From the end on: elements that repeat the last row are behind those that exist.
        for (std::size_t k = lying.size(); k-- > 0;) {
            const auto number = static_cast<std::size_t>(to[k]);
            if (number / last.size() == row) last[number % last.size()] = lying[k];
        }
        return last;
    }

    // Of logits the largest; of a row of the layers' result, with the last norm and the product with the vocabulary.
    int most_probable(const float *row) const {
        const std::size_t width = model_.width;
        if (model_.head == NONE) return static_cast<int>(std::max_element(row, row + model_.vocabulary) - row);
        double mean = 0, squares = 0;
        for (std::size_t k = 0; k < width; ++k) mean += row[k];
        mean = model_.centred ? mean / static_cast<double>(width) : 0;
        for (std::size_t k = 0; k < width; ++k) squares += (row[k] - mean) * (row[k] - mean);
        const double factor = 1 / std::sqrt(squares / static_cast<double>(width) + model_.eps);
        std::vector<double> normed(width);
        for (std::size_t k = 0; k < width; ++k) {
            normed[k] = (row[k] - mean) * factor;
            if (model_.gamma != NONE) normed[k] *= file_.template at<float>(model_.gamma)[k];
            if (model_.beta != NONE) normed[k] += file_.template at<float>(model_.beta)[k];
        }
        int best = 0;
        double most = 0;
        for (std::size_t word = 0; word < model_.vocabulary; ++word) {
            const float *weights = file_.template at<float>(model_.head) + word * width;
            double sum = model_.bias == NONE ? 0 : file_.template at<float>(model_.bias)[word];
            for (std::size_t k = 0; k < width; ++k) sum += normed[k] * weights[k];
            if (word == 0 || sum > most) most = sum, best = static_cast<int>(word);
        }
        return best;
    }

    const Model &model_;
    const File &file_;
    std::function<std::unique_ptr<Machine>(const Program &)> make_;
    std::unique_ptr<Machine> machine_;
};

}  // namespace rsn::decoder

#endif  // RSN_STREAMS_DECODER_H
