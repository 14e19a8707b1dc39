// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package infaas chooses which variants of apps run, how many of each and where: INFaaS' autoscaling (Romero et al., "INFaaS: Automated
// Model-less Inference Serving", USENIX ATC 2021, section 4). README.md has the rules, what the paper leaves open, and where it loses.
package infaas
