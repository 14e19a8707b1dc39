// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package queue

// none gives up nothing and lets no deadline limit a batch: whatever is queued,
// up to the row limit. It is how Triton batches, and what holds while a model
// has no usable profile.
type none struct{}

func (none) Name() string  { return "none" }
func (none) bounded() bool { return false }

func (none) hold(*Load, float64) (int, Time) { return 1, 0 }
