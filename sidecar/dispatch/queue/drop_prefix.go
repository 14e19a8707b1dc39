// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package queue

// prefix gives up a request only when it would be late even if it were
// started alone now, on the fastest profile class that serves its model:
// now + l(its own rows) > its deadline. The batch is then the longest run from
// the head that still meets the head's deadline (GETBATCH without premature
// drops, Symphony, section 3.2).
type prefix struct{}

func (prefix) Name() string  { return "prefix" }
func (prefix) bounded() bool { return true }

func (prefix) hold(*Load, float64) (int, Time) { return 1, 0 }
