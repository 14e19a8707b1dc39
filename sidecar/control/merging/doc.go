// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package merging makes merge groups of the models of a repository revision: it analyses what the operator names, or finds groups by
// itself, says what is on offer, and makes and verifies what a plan wants, one after the other in the background. The result is for
// the keeper of the repository: a directory with a model that was verified, and what it was made of.
//
// A group is known by its members and their content: when a member changes it is analysed, and made, again.
package merging
