// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package http1 answers plain HTTP/1.1 requests inside the connections of a net/http server, at a fraction of what net/http takes for each.
//
// net/http accepts every connection and owns it. Where it would read the next request, a connection of this package (conn.go) looks at the request first. A
// request that is plain, and to a path that New was given, is answered right there, by the server's own Handler. Any other request is given to net/http, byte for
// byte. So everything that is not plain has one implementation, that of net/http: other paths and methods, chunked bodies, Expect, Upgrade, trailers, HTTP/1.0,
// Connection: close, TLS, compressed answers, and every malformed request.
//
// Plain is narrow (head.go): POST, an origin-form path of unreserved characters, HTTP/1.1, CR LF at every line's end, one Host, one Content-Length of digits,
// printable ASCII, no field that concerns the connection or the form of the body. A head that is read here means the same to net/http: FuzzHead compares. If
// net/http's request ends at a known byte, the connection is looked at again after it; if not (chunked, malformed), it is net/http's to its end.
//
// A handler may return before it answers (Later in exchange.go): any goroutine answers then, without a wait, and the one that reads the connection waits for the
// next request meanwhile. So no goroutine belongs to a request, and a client that leaves is noticed at once, without a read beside the request, which is the
// largest part of what net/http takes. Answers keep their order: what comes of a next request waits until the last one has its answer.
//
// Timeouts, limits of heads, discarded bodies, panics and Shutdown are those of net/http, and so is the departure of a client where the handler answers later;
// where it answers before it returns, a client's departure is not noticed. A connection holds 6 KiB more than one of net/http's, and less than 40 KiB where heads
// are large.
package http1
