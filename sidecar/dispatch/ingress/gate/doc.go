// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package gate bounds what clients make Conch hold before a request is accepted
// and after it was answered: connections, requests, bytes of requests that are not
// whole yet, bytes of answers that clients do not take.
//
// A Gate is shared by both fronts. Their listeners are wrapped by Listener, so
// that every connection is a *Conn. A front calls Admit before each request
// and End after it, and reports when the request is whole. Beyond a bound new requests are
// refused with UNAVAILABLE before anything of them is read. Requests that are
// still being received are evicted with the same answer, those of the connection
// that holds most first: an accepted request is never given up for one that is not
// accepted yet. A connection whose client takes nothing of what is written to it
// for the time Stall is closed.
package gate
