// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package nexus is Nexus' placement: squishy bin packing over duty cycles (Shen et al., SOSP 2019; retold in gpulet, section 2.2). It shares
// GPUs in time and never in space. README.md has the rules, and where it loses.
package nexus
