// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package command

// collectorSlack is how much more garbage Go's collector lets conch make before
// it runs. Conch holds a few MiB and makes 10 KB of garbage with each request:
// without slack the collector runs some thirty times a second under load, which
// costs a tenth of the processor time (docs/performance.md).
const collectorSlack = 32 << 20

// slack returns what gives the collector its slack, to be kept alive: it counts as
// used and is never touched, so that it takes addresses and no memory. A heap that
// the operator has tuned (GOGC, GOMEMLIMIT) gets none.
func slack(getenv func(string) string) []byte {
	if getenv("GOGC") != "" || getenv("GOMEMLIMIT") != "" {
		return nil
	}
	return make([]byte, collectorSlack)
}
