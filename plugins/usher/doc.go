// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package usher is USHER's placement (Shubha, Shen, Iyer, "USHER: Holistic Interference Avoidance for Resource Optimized ML Inference", OSDI 2024,
// section 3.3): models that need compute beside models that need memory, in groups whose configurations {BS, RD} are searched together.
// README.md has the rules, what the paper leaves open, and where it loses.
package usher
