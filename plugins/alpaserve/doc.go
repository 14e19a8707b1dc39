// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package alpaserve places models as AlpaServe does (Li et al., "AlpaServe: Statistical Multiplexing with Model Parallelism for Deep Learning
// Serving", OSDI 2023, algorithm 1 without model parallelism): replicas one by one, guided by simulation. README.md has the rules.
package alpaserve
