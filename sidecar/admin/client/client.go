// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/conch-serving/conch/sidecar/admin/api"
)

// DefaultAddress is where conch listens for its operators unless set
// otherwise.
const DefaultAddress = "unix:///run/conch/admin.sock"

// Client talks to one conch. It is safe for concurrent use.
type Client struct {
	address string
	base    string
	token   string
	http    *http.Client
}

// Options of a client that reaches conch over TCP.
type Options struct {
	// Token is shown with every request; it goes over TLS only.
	Token string
	// TLS is how https is done; nil trusts the system's authorities.
	TLS *tls.Config
}

// New makes a client of the admin API at address: unix:///path/to/socket or
// https://host:port. It does not connect yet.
func New(address string) (*Client, error) { return With(address, Options{}) }

// With is New with options.
func With(address string, o Options) (*Client, error) {
	if address == "" {
		address = DefaultAddress
	}
	u, err := url.Parse(address)
	if err != nil {
		return nil, fmt.Errorf("admin address %q is no URL; write unix:///path/to/admin.sock or https://host:port", address)
	}
	switch u.Scheme {
	case "unix":
		path := u.Path
		if path == "" {
			return nil, fmt.Errorf("admin address %q has no path; write unix:///path/to/admin.sock", address)
		}
		dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", path)
		}
		return &Client{address: address, base: "http://conch", http: &http.Client{Transport: &http.Transport{DialContext: dial}}}, nil
	case "http", "https":
		if u.Scheme == "http" && o.Token != "" {
			return nil, fmt.Errorf("admin address %q: a token is not sent in the clear; write https://", address)
		}
		return &Client{address: address, base: strings.TrimSuffix(address, "/"), token: o.Token, http: &http.Client{Transport: &http.Transport{TLSClientConfig: o.TLS}}}, nil
	default:
		return nil, fmt.Errorf("admin address %q: scheme is neither unix, http nor https; write unix:///path/to/admin.sock or https://host:port", address)
	}
}

// Close drops idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Version asks which build answers.
func (c *Client) Version(ctx context.Context) (api.Version, error) {
	return get[api.Version](ctx, c, "/v1/version")
}

// Models lists every model of the repository.
func (c *Client) Models(ctx context.Context) ([]api.Model, error) {
	return get[[]api.Model](ctx, c, "/v1/models")
}

// Model gives one model with its profiles.
func (c *Client) Model(ctx context.Context, name string) (api.Model, error) {
	return get[api.Model](ctx, c, "/v1/models/"+url.PathEscape(name))
}

// GPUs lists the GPUs with their partitions.
func (c *Client) GPUs(ctx context.Context) ([]api.GPU, error) {
	return get[[]api.GPU](ctx, c, "/v1/gpus")
}

// Partitions lists the partitions of the serving plan, and old servers that are to go.
func (c *Client) Partitions(ctx context.Context) ([]api.Partition, error) {
	return get[[]api.Partition](ctx, c, "/v1/partitions")
}

// Partition gives one partition of the serving plan.
func (c *Client) Partition(ctx context.Context, id string) (api.Partition, error) {
	return get[api.Partition](ctx, c, "/v1/partitions/"+url.PathEscape(id))
}

// Cordon cordons or drains a GPU, or gives it back.
func (c *Client) Cordon(ctx context.Context, r api.CordonRequest) (api.CordonResult, error) {
	return post[api.CordonResult](ctx, c, http.MethodPost, "/v1/gpus/cordon", r)
}

// Restart starts a partition's server anew, and returns once it serves again.
func (c *Client) Restart(ctx context.Context, r api.RestartRequest) (api.Partition, error) {
	return post[api.Partition](ctx, c, http.MethodPost, "/v1/partitions/restart", r)
}

// OrderModel loads or unloads a model.
func (c *Client) OrderModel(ctx context.Context, r api.ModelRequest) (api.Model, error) {
	return post[api.Model](ctx, c, http.MethodPost, "/v1/models/order", r)
}

// Log writes the log of a partition's server to w: its last lines (fewer than 0: all
// of the present file), and with follow what comes after, until ctx ends.
func (c *Client) Log(ctx context.Context, partition string, lines int, follow bool, w io.Writer) error {
	query := url.Values{}
	if lines >= 0 {
		query.Set("tail", strconv.Itoa(lines))
	}
	if follow {
		query.Set("follow", "true")
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+"/v1/partitions/"+url.PathEscape(partition)+"/log?"+query.Encode(), nil)
	if err != nil {
		return err
	}
	response, err := c.do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if _, err := io.Copy(w, response.Body); err != nil && (!follow || ctx.Err() == nil) {
		return fmt.Errorf("log of %s from %s: %w", partition, c.address, err)
	}
	return nil
}

// GPUAdvice says whether the load of late wants more or fewer GPUs.
func (c *Client) GPUAdvice(ctx context.Context) (api.GPUAdvice, error) {
	return get[api.GPUAdvice](ctx, c, "/v1/gpus/advice")
}

// Plan gives the plan that serves.
func (c *Client) Plan(ctx context.Context) (api.Plan, error) {
	return get[api.Plan](ctx, c, "/v1/plan")
}

// Diff says what applying a plan would change, that of the policy unless r names
// another. It changes nothing.
func (c *Client) Diff(ctx context.Context, r api.DiffRequest) (api.Diff, error) {
	return post[api.Diff](ctx, c, http.MethodPost, "/v1/plan/diff", r)
}

// History lists the plans that served, newest first.
func (c *Client) History(ctx context.Context) ([]api.PlanRecord, error) {
	return get[[]api.PlanRecord](ctx, c, "/v1/plan/history")
}

// Pin has the plan in force stay, or ends that.
func (c *Client) Pin(ctx context.Context, r api.PinRequest) (api.Plan, error) {
	return post[api.Plan](ctx, c, http.MethodPost, "/v1/plan/pin", r)
}

// Apply applies a plan, that of the policy unless r names another.
func (c *Client) Apply(ctx context.Context, r api.ApplyRequest) (api.ApplyResult, error) {
	return post[api.ApplyResult](ctx, c, http.MethodPost, "/v1/plan/apply", r)
}

// Explain says why a model is where it is.
func (c *Client) Explain(ctx context.Context, model string) (api.Explanation, error) {
	return get[api.Explanation](ctx, c, "/v1/plan/explain/"+url.PathEscape(model))
}

// Policies lists the policies that this conch can run.
func (c *Client) Policies(ctx context.Context) ([]api.Policy, error) {
	return get[[]api.Policy](ctx, c, "/v1/policies")
}

// Policy describes one policy with its parameters.
func (c *Client) Policy(ctx context.Context, name string) (api.Policy, error) {
	return get[api.Policy](ctx, c, "/v1/policies/"+url.PathEscape(name))
}

// KnownPolicies is Policies without starting any process: of those that are not in use
// only the names are known.
func (c *Client) KnownPolicies(ctx context.Context) ([]api.Policy, error) {
	return get[[]api.Policy](ctx, c, "/v1/policies?describe=false")
}

// KnownPolicy is Policy without starting any process.
func (c *Client) KnownPolicy(ctx context.Context, name string) (api.Policy, error) {
	return get[api.Policy](ctx, c, "/v1/policies/"+url.PathEscape(name)+"?describe=false")
}

// UsePolicy swaps the policy; the old one keeps deciding when the new one
// cannot start.
func (c *Client) UsePolicy(ctx context.Context, r api.UsePolicyRequest) (api.Policy, error) {
	return post[api.Policy](ctx, c, http.MethodPut, "/v1/policy", r)
}

// Events gives the events after id since, oldest first: those of some kinds, or of all. An unknown kind is an error.
func (c *Client) Events(ctx context.Context, since uint64, kinds ...string) ([]api.Event, error) {
	query := url.Values{"since": {strconv.FormatUint(since, 10)}}
	if len(kinds) > 0 {
		query["kind"] = kinds
	}
	return get[[]api.Event](ctx, c, "/v1/events?"+query.Encode())
}

func get[T any](ctx context.Context, c *Client, path string) (T, error) {
	var out T
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+path, nil)
	if err != nil {
		return out, err
	}
	return decode[T](c, request)
}

func post[T any](ctx context.Context, c *Client, method, path string, in any) (T, error) {
	var out T
	body, err := json.Marshal(in)
	if err != nil {
		return out, err
	}
	request, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return out, err
	}
	request.Header.Set("Content-Type", "application/json")
	return decode[T](c, request)
}

func decode[T any](c *Client, request *http.Request) (T, error) {
	var out T
	response, err := c.do(request)
	if err != nil {
		return out, err
	}
	defer response.Body.Close()
	if err := json.NewDecoder(response.Body).Decode(&out); err != nil {
		return out, fmt.Errorf("answer of %s to %s: %w", c.address, request.URL.Path, err)
	}
	return out, nil
}

// do sends request and turns an error answer into *Error.
func (c *Client) do(request *http.Request) (*http.Response, error) {
	if c.token != "" {
		request.Header.Set("Authorization", "Bearer "+c.token)
	}
	response, err := c.http.Do(request)
	if err != nil {
		var netErr *net.OpError
		if errors.As(err, &netErr) && netErr.Op == "dial" {
			return nil, unreachable(c.address, netErr.Err)
		}
		if errors.Is(err, http.ErrSchemeMismatch) {
			return nil, fmt.Errorf("what answers at %s speaks HTTP without TLS; is that conch's listen.admin? It has TLS on TCP", c.address)
		}
		return nil, err
	}
	if response.StatusCode < 300 {
		return response, nil
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	if err != nil {
		return nil, fmt.Errorf("answer of %s: %w", c.address, err)
	}
	var failed struct {
		Error *api.Error `json:"error"`
	}
	if json.Unmarshal(body, &failed) != nil || failed.Error == nil {
		return nil, fmt.Errorf("%s answered %s: %s; is that conch's listen.admin?", c.address, response.Status, strings.TrimSpace(string(body)))
	}
	return nil, failed.Error
}
