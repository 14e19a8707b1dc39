// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"github.com/conch-serving/conch/sidecar/dispatch/batch"
)

// unserved is the answer to a request whose model has no route: err, or more
// exactly what Triton says of the version that was asked for.
func (d *Dispatcher) unserved(r *batch.Request, err error) error {
	if t := d.routes.Load(); t != nil && r.Version != "" && t.models[r.Model] == nil {
		return t.table.Unknown(r.Model, r.Version)
	}
	return err
}
