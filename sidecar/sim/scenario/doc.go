// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package scenario is the file format of what is simulated: GPUs, models with profiles, load or a trace, a policy or a plan, delays and
// failures. [Parse] decodes strictly, [Scenario.World] makes a sim.World of it, [FromSnapshot] makes a scenario of a live Conch's snapshot
// and a trace. README.md of sidecar/sim describes the keys; testdata has examples.
package scenario
