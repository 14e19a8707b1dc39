// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package shm passes tensors to a Triton on the same host through system shared
// memory (Triton's system shared memory extension), so that they cross no
// socket.
//
// A Pool belongs to one server. It consists of slabs, each a file in /dev/shm
// that is registered with the server as a region under a name that cannot be
// guessed, and then unlinked: a crash leaves nothing behind. Slabs are made when
// there was no room, in the background, up to a limit; meanwhile, and whenever
// there is no room, Take lends nothing and the caller sends its tensors through the
// socket.
//
// What a server has written is lent on to another execution where it lies (Borrow): to one of the same server, or of another one with which the
// region is registered, too (share.go).
//
// A server that was lost may still write into what it was lent. Discard keeps
// such slabs out of use; their memory is returned once the last block is freed.
package shm
