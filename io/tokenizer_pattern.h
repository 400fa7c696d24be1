// Regular expressions of tokenizer.json, which are Oniguruma's in Ruby's syntax, for PCRE2. The two
// read most patterns alike. Where they differ, other words would be cut and other tokens come out;
// so the pattern is rewritten:
//
//   pattern       there                             for PCRE2, which reads it as
//   \s            Unicode's white space             [\p{Z}\t-\r\x{85}]   with U+180E
//   \w            letters, marks, digits, Pc        [\p{L}\p{M}...]      without marks
//   \b            an edge of \w                     lookarounds          of its own \w
//   \h            hexadecimal digits                [0-9a-fA-F]          horizontal space
//   \v            a vertical tab                    \x0b                 vertical space
//   \p{Han}       letters of the script             \p{sc:Han}           also of its extensions
//   \u0041        a letter by its number            \x{0041}             an error
//   [a[bc]]       a set with a set in it            [abc]                [a[bc] and ]
//   [[:space:]]   as \s                             [\p{Z}\t-\r\x{85}]   with U+180E
//   (?m:.)        a dot that takes newlines         (?s:.)               anchors of lines
//   x{,3}         up to 3                           x{0,3}               as it stands
//
// ^ and $ are of lines there: the result is for PCRE2_MULTILINE. FormatError names what else would
// be read differently, such as [a&&b] or x{1,3}+.
#pragma once
#include <string>

namespace tinyshard::io {

std::string pattern_for_pcre2(const std::string& pattern, const std::string& label);

}  // namespace tinyshard::io
