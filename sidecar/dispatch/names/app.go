// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package names

import (
	"math"
	"slices"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/sidecar/dispatch/batch"
)

// Parameters of requests for apps, and of their answers.
const (
	// ParameterAccuracy is the least accuracy that a request takes: a number from 0
	// to 1, or a text that is one.
	ParameterAccuracy = "accuracy"
	// ParameterLatency is the longest time to an answer that a request takes: a
	// number of microseconds, as Triton's timeout is, or a text such as "50ms".
	ParameterLatency = "latency"
	// ParameterVariant of an answer is the model that served it.
	ParameterVariant = "conch_variant"
)

// Resolver finds the model that serves a request for an app. It is safe for concurrent use.
type Resolver struct {
	name    string
	chooser *Chooser
	// mostRows that a request can count as: a client may write any number into a
	// shape.
	mostRows int64
}

// Resolve makes r a request for the model that is to serve it, and removes the
// parameters that are for Conch and not for the model. At is the time since a
// moment that does not change. The error is a gRPC status error about the
// request, or an *InactiveError.
func (a *Resolver) Resolve(r *batch.Request, at time.Duration) (Target, error) {
	w, err := a.wish(r)
	if err != nil {
		return Target{}, err
	}
	switch _, sequence := batch.FindParameter(r.Parameters, batch.ParameterSequenceID); {
	case sequence:
		return Target{}, status.Errorf(codes.InvalidArgument, "'%s' is an app: the requests of a sequence have to name one of its variants", a.name)
	case r.Version != "" && r.Version != "1":
		return Target{}, status.Errorf(codes.NotFound, "Request for unknown model: '%s' version %s is not found", a.name, r.Version)
	}
	rows := a.rowsOf(r)
	i, err := a.chooser.Choose(a.name, w, rows, at)
	if err != nil {
		return Target{}, err
	}
	v := &a.chooser.app.Variants[i]
	if v.State == Inactive {
		return Target{}, &InactiveError{a.name, v.Model, w, rows}
	}
	r.Detach()
	r.Model, r.Version = v.Model, ""
	// A list of its own: a caller that resolves the name again needs the original
	// parameters.
	r.Parameters = slices.DeleteFunc(slices.Clone(r.Parameters), func(p batch.Parameter) bool { return p.Name == ParameterAccuracy || p.Name == ParameterLatency })
	return Target{Model: v.Model, Wish: w, Answer: func(resp *batch.Response) {
		resp.Detach()
		resp.Model = a.name
		// The list may be shared by the requests of a batch.
		resp.Parameters = append(slices.Clip(resp.Parameters), batch.StringParameter(ParameterVariant, v.Model))
	}}, nil
}

// rowsOf returns the rows that a request counts as: its first input's first
// dimension, which is the batch of every model that has one. A request with more
// rows than the variants take at once is refused by their servers, and counts as
// one row: the shape is the client's, and not checked yet.
func (a *Resolver) rowsOf(r *batch.Request) int {
	if rows := int64(r.Rows()); rows > 1 && rows <= a.mostRows {
		return int(rows)
	}
	return 1
}

// wish returns the wish of a request; a value that the request does not give is
// the app's.
func (a *Resolver) wish(r *batch.Request) (Wish, error) {
	w := a.chooser.app.Wish
	if p, ok := batch.FindParameter(r.Parameters, ParameterAccuracy); ok {
		v, ok := number(p)
		if !ok || !(v >= 0 && v <= 1) {
			return w, status.Errorf(codes.InvalidArgument, "parameter '%s' of a request for '%s' has to be a number from 0 to 1", ParameterAccuracy, a.name)
		}
		w.Accuracy = v
	}
	if p, ok := batch.FindParameter(r.Parameters, ParameterLatency); ok {
		v, ok := duration(p)
		if !ok || v <= 0 {
			return w, status.Errorf(codes.InvalidArgument, "parameter '%s' of a request for '%s' has to be a positive number of microseconds, or a time such as \"50ms\"", ParameterLatency, a.name)
		}
		w.Latency = v
	}
	return w, nil
}

func number(p batch.Parameter) (float64, bool) {
	if v, ok := p.Double(); ok {
		return v, true
	}
	if v, ok := p.Int64(); ok {
		return float64(v), true
	}
	if text, ok := p.Text(); ok {
		v, err := strconv.ParseFloat(text, 64)
		return v, err == nil
	}
	return 0, false
}

func duration(p batch.Parameter) (time.Duration, bool) {
	if v, ok := number(p); ok {
		if !(math.Abs(v) < float64(math.MaxInt64)/float64(time.Microsecond)) {
			return 0, false
		}
		return time.Duration(v * float64(time.Microsecond)), true
	}
	text, ok := p.Text()
	if !ok {
		return 0, false
	}
	v, err := time.ParseDuration(text)
	return v, err == nil
}
