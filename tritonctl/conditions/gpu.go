// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package conditions

import (
	"fmt"
	"strconv"

	"github.com/conch-serving/conch/sidecar/admin/api"
)

// InUse is the state of a GPU that plans may use.
const InUse = "in use"

// GPU is whether plans may use a GPU, and why not.
func GPU(g api.GPU) string {
	switch {
	case g.Cordon != nil && g.Cordon.Drain:
		return "drained"
	case g.Cordon != nil:
		return "cordoned"
	case g.Unavailable != "":
		return "unavailable: " + g.Unavailable
	}
	return InUse
}

// Share is what a partition has of its GPU, and how many batches it runs at once if it is several.
func Share(p api.Partition) string {
	share := strconv.Itoa(p.ThreadPercentage) + "%"
	if p.Executions > 1 {
		share += fmt.Sprintf(", %d at once", p.Executions)
	}
	return share
}
