// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package symphony divides models and GPUs into sub-clusters of which each is served by one dispatcher (Symphony, section 4.4 and appendix A),
// and follows the advice on the size of the cluster (section 3.5). README.md has the rules, what the paper leaves open, and where it loses.
package symphony
