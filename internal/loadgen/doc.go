// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package loadgen offers load to a Triton endpoint and accounts for every request by its model's SLO.
//
// Run is open-loop: requests leave at the times that the arrival process says, whatever happened to those before, and latency counts
// from that time. A request is bad if it is late or failed. Closed is closed-loop, for comparing the cost of a path. Search finds the
// highest rate that a system holds.
package loadgen
