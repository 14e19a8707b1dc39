// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package conch is Conch's own placement: it takes the plans of the other policies, and groups of models by how long they block, as
// beginnings, asks the host for their outcomes under the present traffic, and improves the best by local search until its counted
// budget is spent. README.md has the rules, and where it loses.
package conch
