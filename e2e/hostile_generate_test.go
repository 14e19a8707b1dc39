// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/hostile"
)

// generation asks the decoupled model for n answers, each after so many milliseconds.
func generation(n, each int) string {
	values, delays := make([]int, n), make([]int, n)
	for i := range n {
		values[i], delays[i] = 40+i, each
	}
	body, _ := json.Marshal(map[string]any{"IN": values, "DELAY": delays}) //nolint:errchkjson // numbers
	return string(body)
}

// generate asks over HTTP and requires all that was asked for.
func generate(ctx context.Context, client *http.Client, address, path string, n, each int) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+address+"/v2/models/decoupled/"+path, strings.NewReader(generation(n, each)))
	if err != nil {
		return err
	}
	answer, err := client.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		return err
	}
	for i := range n {
		if !bytes.Contains(body, fmt.Appendf(nil, `"IDX":%d,"OUT":%d,`, i, 40+i)) {
			return fmt.Errorf("%s of %d: status %d, %s", path, n, answer.StatusCode, body)
		}
	}
	return nil
}

// desert asks for a generation over a connection of its own and leaves at some moment.
func desert(ctx context.Context, address string, random *rand.Rand) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	path := "generate"
	if random.IntN(4) > 0 {
		path = "generate_stream"
	}
	if _, err := conn.Write(hostile.Post("/v2/models/decoupled/"+path, "", generation(random.IntN(5), random.IntN(2)))); err != nil {
		_ = conn.Close()
		return err
	}
	time.Sleep(time.Duration(random.IntN(8000)) * time.Microsecond)
	if random.IntN(2) == 0 {
		_ = conn.(*net.TCPConn).SetLinger(0) // a reset
	}
	return conn.Close()
}

// Callers of generate and generate_stream disconnect at any moment under load: neither the server nor Conch fails, and other callers get all
// answers, over HTTP and on gRPC streams.
func TestWhoLeavesGeneration(t *testing.T) {
	t.Parallel()
	server, c := observed(t, "decoupled", "identity")
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 8}}
	defer client.CloseIdleConnections()
	const readers, deserters, leaves = 4, 4, 60
	var stay, leave sync.WaitGroup
	var over atomic.Bool
	errs := make([]error, readers+1+deserters)
	for i := range readers {
		stay.Go(func() {
			for k := 0; (k < 10 || !over.Load()) && errs[i] == nil; k++ {
				if errs[i] = generate(ctx, client, c.HTTP, "generate_stream", 1+k%4, k%2); errs[i] == nil {
					errs[i] = generate(ctx, client, c.HTTP, "generate", 1, 0)
				}
			}
		})
	}
	streams := triton(t, c)
	stay.Go(func() { errs[readers] = inTurns(ctx, streams, 40) })
	for i := range deserters {
		random := rand.New(rand.NewPCG(1, uint64(i)))
		leave.Go(func() {
			err := &errs[readers+1+i]
			for k := 0; k < leaves && *err == nil; k++ {
				*err = desert(ctx, c.HTTP, random)
				time.Sleep(20 * time.Millisecond) // the server does not stop what it has begun, and is not to be swamped
			}
		})
	}
	leave.Wait()
	over.Store(true)
	stay.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	require.NoError(t, generate(ctx, client, server.HTTP, "generate_stream", 3, 0), "it did not die")
}
