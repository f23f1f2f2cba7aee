// A request, a line of `name=value` words; and an answer, a line of JSON.
#pragma once

#include <cstdint>
#include <cstdio>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace hookstats::tune {

class Request {
 public:
  explicit Request(const std::string& line) {
    std::istringstream words(line);
    words >> what_;
    for (std::string word; words >> word;) {
      const size_t at = word.find('=');
      if (at == std::string::npos) {
        throw std::invalid_argument("word '" + word + "': expected name=value");
      }
      values_[word.substr(0, at)] = word.substr(at + 1);
    }
  }

  const std::string& what() const { return what_; }

  const std::string& text(const std::string& name) const {
    const auto found = values_.find(name);
    if (found == values_.end()) throw std::invalid_argument("no " + name + " in the request");
    return found->second;
  }

  int64_t number(const std::string& name) const {
    const std::vector<int64_t> all = numbers(name);
    if (all.size() != 1) throw std::invalid_argument(name + "=" + text(name) + ": expected one");
    return all.front();
  }

  std::vector<int64_t> numbers(const std::string& name) const {
    std::vector<int64_t> all;
    std::istringstream words(text(name));
    for (std::string word; std::getline(words, word, ',');) {
      size_t read = 0;
      int64_t number = 0;
      try {
        number = std::stoll(word, &read);
      } catch (const std::exception&) {
      }
      if (word.empty() || read != word.size()) {
        throw std::invalid_argument(name + "=" + text(name) + ": expected whole numbers");
      }
      all.push_back(number);
    }
    return all;
  }

 private:
  std::string what_;
  std::map<std::string, std::string> values_;
};

class Answer {
 public:
  Answer& add(const std::string& name, double value) {
    char text[40];
    std::snprintf(text, sizeof text, "%.9g", value);
    return raw(name, text);
  }
  Answer& add(const std::string& name, const std::string& value) {
    std::string quoted = "\"";
    for (const char c : value) {
      if (c == '"' || c == '\\') quoted += '\\';
      quoted += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
    }
    return raw(name, quoted + '"');
  }

  // To whoever asked, who may be waiting.
  void send() const {
    std::printf("{%s}\n", text_.c_str());
    std::fflush(stdout);
  }

 private:
  Answer& raw(const std::string& name, const std::string& value) {
    text_ += (text_.empty() ? "\"" : ", \"") + name + "\": " + value;
    return *this;
  }

  std::string text_;
};

}  // namespace hookstats::tune
