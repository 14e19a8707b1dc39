// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/record"
)

// longestTrace bounds one recording.
const longestTrace = 24 * time.Hour

// trace streams a recording of ?for=DURATION. What cannot be known before its
// end, how many requests it has and how many were lost, is in the trailers.
func (s *server) trace(w http.ResponseWriter, r *http.Request) {
	text := r.URL.Query().Get("for")
	length, err := time.ParseDuration(text)
	if err != nil || length <= 0 || length > longestTrace {
		s.fail(w, &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("for=%q is no duration from 1ns to %v; write it like 30s", text, longestTrace)})
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), length)
	defer cancel()
	header := w.Header()
	header.Set("Content-Type", "application/octet-stream")
	header.Set("Cache-Control", "no-store")
	header.Set("Trailer", api.TraceRequestsTrailer+", "+api.TraceLostTrailer)
	out := stream(w)
	defer out.over()
	got, err := s.conch.Record(ctx, out)
	var refused *api.Error
	switch {
	case errors.As(err, &refused):
		header.Del("Trailer")
		s.fail(w, err)
	case err != nil:
		// The trailers that are missing tell the caller.
		s.log.Warn("a recording ended early", "error", err, "requests", got.Requests)
		panic(http.ErrAbortHandler)
	default:
		header.Set(api.TraceRequestsTrailer, strconv.FormatUint(got.Requests, 10))
		header.Set(api.TraceLostTrailer, strconv.FormatUint(got.Lost, 10))
	}
}

// Record implements API.
func (v view) Record(ctx context.Context, w io.Writer) (api.Recorded, error) {
	version := v.control.Version()
	requests, lost, err := v.recorder.Stream(ctx, w, "conch "+version.Version+", mode "+version.Mode)
	if errors.Is(err, record.ErrBusy) {
		err = &api.Error{Code: api.CodeConflict, Message: err.Error()}
	}
	return api.Recorded{Requests: requests, Lost: lost}, err
}

// Snapshot implements API.
func (v view) Snapshot(ctx context.Context) (json.RawMessage, error) {
	snapshot, err := v.control.Snapshot(ctx)
	if err != nil {
		return nil, coded(err)
	}
	encoded, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(snapshot)
	if err != nil {
		return nil, fmt.Errorf("snapshot %d as JSON: %w", snapshot.GetRevision(), err)
	}
	// protojson varies its white space from build to build.
	var compact bytes.Buffer
	if err := json.Compact(&compact, encoded); err != nil {
		return nil, fmt.Errorf("snapshot %d as JSON: %w", snapshot.GetRevision(), err)
	}
	return compact.Bytes(), nil
}
