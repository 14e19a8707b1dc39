// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package shim keeps a server alive while conch restarts. A shim is a small
// process (conch's own executable, subcommand "shim") that is the parent of one
// tritonserver. It outlives conch, writes the server's output to a log with
// rotation, keeps its exit status and its process group, and reaps the orphans
// of the group.
//
// A shim has a directory of its own:
//
//	spec.json  what to start; read and removed by the shim, for it holds the environment
//	shim.json  the identities of the shim and its server: process ids with start times
//	sock       the socket for conch's orders, one JSON message per line
//	exit.json  how the server ended
//
// While a conch is connected to the socket, the shim obeys its orders: end
// the server, or kill it. Without one for OrphanGrace it ends the server by
// itself. A shim that is killed takes its server along (parent-death signal).
//
// A process id alone names nothing: ids are used again. A shim is known by its
// id, its start time and the boot of the machine; the processes of its server by
// the unique name that their environment holds.
package shim
