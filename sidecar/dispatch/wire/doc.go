// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package wire is HTTP/2 for unary gRPC calls, from clients and to servers, at the cost of a proxy written in C.
//
// Server runs one method by a Handler: a call's message stays where it was read, if it is large, the Handler is called by the goroutine that reads the connection, and any
// goroutine answers. Every other stream of the same connection goes to a grpc-go server behind it (Inner), frame by frame and with the number that the
// client gave it: streams, other methods, compressed messages, and calls whose header fields are unusual, which so get grpc-go's answers. Client is one
// connection to a server.
//
// # Turns
//
// Frames are queued and leave with one writev for each connection and Turn: when the goroutine that reads has handled all that one read has brought. A
// write never waits. What a socket does not take at once is written by a goroutine of its connection's own, so that a client that reads slowly holds up
// nobody else. Reads and writes are system calls of which the runtime is not told where they are short (now.go). A goroutine that has handled much gives way (longTurn, longTime), after more of it also to those for whose sockets something has come (askNetwork), and what it has to write beyond some data is left to such goroutines (longWrite), so
// that long turns of one connection do not delay another's.
//
// # Bounds
//
// A client that misuses the protocol loses its stream or its connection, as RFC 9113 has it and at least where grpc-go is as strict: malformed header
// fields, streams that go back, windows that overflow or are exceeded, settings out of their bounds, header fields without end, pings that are too
// frequent, empty frames without end, changes of many streams' windows without end, and calls that are reset faster than their handlers end. A client that does not read is not
// read from, and data for it stay with their streams (mostQueued). The windows that a client gives and lowers hold for what the inner server has sent, too, and an answer's header fields
// are no larger than it takes. A server that misuses the protocol loses its connection, and malformed header fields of its answers reach nobody. What is received and not whole belongs to the caller's account, who sees every byte that is read; buffers grow with what
// has come, and not with what was announced.
//
// # Why not a library
//
// Measured on two cores before it was written, as what a proxy adds to the median latency of one caller with 1 KB: net/http's HTTP/2, on which connect-go
// stands, 322 us; grpc-go 176 us, whatever its options; code on raw connections 65 us. What costs is the hand-over between goroutines, 15 to 40 us each, of
// which the libraries make several for a call. fasthttp hands nothing over and speaks no HTTP/2. Kitex carries a copy of grpc-go's transport, and the servers
// of HTTP/2 for netpoll and fasthttp a copy of x/net's. The price is that this package has to keep up with attacks on HTTP/2 by itself: its frames are fuzzed,
// `make h2spec` compares it with grpc-go case by case, and `wire: grpc-go` in conch.yaml does without it.
package wire
