package policyhost

import (
	"context"

	"github.com/conch-serving/conch/plugins/policy"
)

// Host runs the policy in use.
type Host struct{}

// New makes a host without a policy.
func New(o Options) *Host { return nil }

// Beside returns the path of conch-policies next to the given executable.
func Beside(executable string) string { return "" }

// Use puts a policy in use.
func (h *Host) Use(ctx context.Context, ref Ref) (*policy.Description, error) { return nil, nil }

// Plan asks the policy in use.
func (h *Host) Plan(ctx context.Context, s *policy.Snapshot) (*policy.Plan, error) { return nil, nil }

// Describe describes a policy, in use or not.
func (h *Host) Describe(ctx context.Context, ref Ref) (*policy.Description, error) { return nil, nil }

// LastGood returns the last good plan, nil if there was none.
func (h *Host) LastGood() *policy.Plan { return nil }

// Status of the policy in use.
func (h *Host) Status() Status { return Status{} }

// List names the policies that could be used, sorted.
func (h *Host) List(ctx context.Context) ([]Known, error) { return nil, nil }

// Close stops the process.
func (h *Host) Close() error { return nil }
