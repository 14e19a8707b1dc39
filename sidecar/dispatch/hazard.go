// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/sidecar/dispatch/batch"
)

// Regions has the shared memory that clients have registered: shm.Regions.
type Regions interface {
	// Missing reports whether a part of a region has no memory behind it any more.
	Missing(region string, offset, size uint64) bool
}

// hazard returns an error for a request that must not reach a server, because it
// is known to crash one.
func (d *Dispatcher) hazard(r *batch.Request, rules *batch.Rules) error {
	if err := rules.Hazard(r); err != nil || d.o.Regions == nil {
		return err
	}
	for i := range r.Inputs {
		if err := d.regionHazard(r.Inputs[i].Parameters); err != nil {
			return err
		}
	}
	for i := range r.Outputs {
		if err := d.regionHazard(r.Outputs[i].Parameters); err != nil {
			return err
		}
	}
	return nil
}

// regionHazard returns an error for a tensor in memory that no longer exists: a server that
// reads it crashes.
func (d *Dispatcher) regionHazard(parameters []batch.Parameter) error {
	if len(parameters) == 0 {
		return nil
	}
	p, ok := batch.FindParameter(parameters, batch.ParameterSharedMemoryRegion)
	if !ok {
		return nil
	}
	region, _ := p.Text()
	number := func(name string) uint64 {
		p, _ := batch.FindParameter(parameters, name)
		v, _ := p.Int64() // batch.Rules has refused what is negative
		return uint64(v)
	}
	if !d.o.Regions.Missing(region, number(batch.ParameterSharedMemoryOffset), number(batch.ParameterSharedMemorySize)) {
		return nil
	}
	return status.Errorf(codes.InvalidArgument, "Invalid offset + byte size for shared memory region: '%s': its object was made shorter after it was registered", region)
}
