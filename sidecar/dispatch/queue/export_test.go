// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package queue

// Lanes is how many lanes a model has: those with requests, and some idle ones.
func Lanes(s *Scheduler, id ModelID) int { return len(s.model(id).lanes) }
