package apply

import (
	"context"

	"github.com/conch-serving/conch/sidecar/dispatch"
)

// Router is the request path; a *dispatch.Dispatcher is one.
type Router interface {
	Swap(ctx context.Context, t *dispatch.RouteTable) error
	SetPartitionState(id string, up bool, reason string)
}
