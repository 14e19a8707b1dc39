// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/sidecar/dispatch/batch"
)

// unserved is the answer to a request whose model has no route: err, or more
// exactly what Triton says of the version that was asked for.
func (d *Dispatcher) unserved(r *batch.Request, err error) error {
	if t := d.routes.Load(); t != nil && r.Version != "" && t.models[r.Model] == nil {
		return t.unknown(r.Model, r.Version)
	}
	return err
}

// unknown is Triton's answer about a model that is not served.
func (t *routes) unknown(name, version string) error {
	versions, absent := t.table.Absent[name]
	switch {
	case !absent:
		return status.Errorf(codes.NotFound, "Request for unknown model: '%s' is not found", name)
	case version == "":
		return status.Errorf(codes.NotFound, "Request for unknown model: '%s' has no available versions", name)
	case slices.Contains(versions, version):
		return status.Errorf(codes.Unavailable, "Request for unknown model: '%s' version %s is not at ready state", name, version)
	}
	return status.Errorf(codes.NotFound, "Request for unknown model: '%s' version %s is not found", name, version)
}
