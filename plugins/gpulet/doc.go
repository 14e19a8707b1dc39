// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package gpulet is gpulet's placement: spatio-temporal sharing with interference (Choi et al., USENIX ATC 2022, sections 4.3 to 4.5), and its
// two baselines, greedy best fit and an even split. README.md has the rules, what the paper leaves open, and where it loses.
package gpulet
