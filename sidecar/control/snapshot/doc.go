// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package snapshot makes the world as a policy sees it out of what is declared (conch.yaml, profile files, the repository) and what is
// observed. Its functions are pure; control gathers their arguments.
package snapshot
