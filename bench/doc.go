// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Command conch-bench measures the figures of docs/results.md; `conch-bench --help` lists its commands.
//
// On real tritonservers: `live` (Conch over Triton's own best scheduling), `advise` and `mix` (what `tritonctl advise` says of ten loads, and what they hold
// then), `instant` (a model that takes no time) and `fidelity` (live conch against the simulator). On minitriton: `proxy` (what a call costs, beside nginx and HAProxy) and `overload`, which compares queue policies on real tritonservers.
// Simulated: `core` and `cores` (the queue alone), `sim` (the simulator's speed), `compare`, `ablation` and `unseen` (disciplines under many loads),
// `reproduce` (Symphony's results that need no GPU), `reproduce-abacus` (Abacus's).
//
// Each writes results/COMMAND.json; `advise` and `mix` after each load. `results` writes docs/results.md and the tables of figures in other pages from these files.
package main
