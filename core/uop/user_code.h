// Calls of functions that the user's program gave to the library: rules, kernels, gradients. A node that
// does not fit is a mistake of the program there, and no bug of the library.
#pragma once
#include <string>

#include "core/base/error.h"

namespace tinyshard {

// The text of an InternalError, without the words that ask to report it.
inline std::string text_of(const InternalError& error) {
  const std::string text = error.what();
  return text.substr(0, text.rfind(" (a bug in tinyshard"));
}

// f(), where all that is thrown of ours becomes a UserError with the text that `told` makes of it.
template <class F, class Told>
auto in_user_code(const F& f, const Told& told) {
  try {
    return f();
  } catch (const InternalError& error) {
    throw UserError(told(text_of(error)));
  } catch (const UserError& error) {
    throw UserError(told(error.what()));
  }
}

}  // namespace tinyshard
