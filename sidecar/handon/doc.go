// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package handon is what a replica does for clients while another replica owns the release's servers: it hands each request on to the owner, over one hop
// of the same protocol, and gives the owner's answer back. Every method and route crosses untouched, so that clients find the same answers at
// each replica.
//
// A request that is handed on has a mark. A replica that owns nothing refuses a marked request with a mark of its own, and the one that sent it waits and tries
// again: no request makes two hops, and none goes in circles. While the owner changes, requests wait, until their own deadline or Options.Patience. What the
// owner has not begun is sent again as often as it takes; what an owner may have executed before it ended, or before the connection to it broke, is sent once
// more, to the next owner or to the same one if that still serves, and not at all where it may belong to a sequence.
//
// When this replica becomes the owner, its doors pass to the servers that execute (Take): the sockets stay open, so that no connection is refused.
package handon
