// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package apply brings the desired state about and keeps it: it starts servers,
// loads models, warms them up, routes requests to them, and takes down what is
// not wanted any more.
//
// It is level-triggered. Set writes a generation of the desired state to disk and
// returns. From then on one goroutine, the loop, compares what is wanted with
// what is seen, over and over: package decide says what should be under way, the
// loop starts that and cancels the rest. Every action runs in a goroutine of its
// own, so that nothing waits for another partition or model. Observations come
// from the drivers and from the servers themselves, which are asked every second
// what they have loaded.
//
// A crash leaves nothing to repair: the next conch reads the desired state, finds
// the servers that still run, and goes on from what it sees.
package apply
