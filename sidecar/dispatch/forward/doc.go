// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package forward keeps the connections to partitions: unary calls and streams
// whose messages are passed on as received, and the distinction between an
// answer and a lost connection. Requests that came over HTTP may go to a
// partition's HTTP port (port.go).
package forward
