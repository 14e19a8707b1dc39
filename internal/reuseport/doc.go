// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package reuseport opens TCP addresses that several processes share
// (SO_REUSEPORT), and lets one of them leave without losing a connection.
//
// Linux gives every listener of such an address its share of new connections,
// by a hash, and resets those that wait in a listener's queue when it is
// closed (unless net.ipv4.tcp_migrate_req is set). Before it closes its
// listener, a process that leaves therefore steers new connections to another:
// Yield. It goes on accepting until none comes any more.
package reuseport
