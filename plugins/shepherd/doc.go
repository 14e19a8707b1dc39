// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package shepherd places models as Shepherd's periodic planner does (Zhang et al., "SHEPHERD: Serving DNNs in the Wild", NSDI 2023): groups of
// models that share groups of whole GPUs. README.md has the rules and where it loses.
package shepherd
