// Whole messages over a socket of Asio, as they are or through TLS: for the threads that serve many
// connections at once. boost::system::system_error where the connection ends.
#pragma once
#include <utility>  // before Boost's headers, one of which forgets it

#include <boost/asio/awaitable.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/tcp.hpp>

#include "transport/tcp/tls.h"

namespace tinyshard::tcp {

// `session` is null where what goes over the socket is not encrypted.
boost::asio::awaitable<void> read_exactly(boost::asio::ip::tcp::socket& socket, TlsSession* session,
                                          boost::asio::mutable_buffer to);
boost::asio::awaitable<void> write_exactly(boost::asio::ip::tcp::socket& socket,
                                           TlsSession* session, boost::asio::const_buffer from);
// False where the other side did not come to an agreement.
boost::asio::awaitable<bool> agree_on_keys(boost::asio::ip::tcp::socket& socket,
                                           TlsSession& session);

}  // namespace tinyshard::tcp
