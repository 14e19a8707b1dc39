// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package ensemble is what an ensemble's configuration says of its steps (Triton's model configuration, "Ensemble Models"): which steps there are,
// which of them a request needs, which can start when, and until when each has to be done for the whole to be in time.
//
// Split makes the Graph of an ensemble, or says in words which step Conch cannot execute by itself. A Run is the way of one request through a
// Graph. The package is pure: it executes nothing and reads no clock.
package ensemble
