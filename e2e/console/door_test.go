// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package console_test

import (
	"encoding/json"
	"io"
	"io/fs"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// letIn opens a link as a browser would, without one.
func letIn(t *testing.T, link string) (*http.Client, string) {
	t.Helper()
	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	c := &http.Client{Jar: jar}
	t.Cleanup(c.CloseIdleConnections)
	u, err := url.Parse(link)
	require.NoError(t, err)
	answer, err := c.Get(link)
	require.NoError(t, err)
	defer answer.Body.Close()
	require.Equal(t, http.StatusOK, answer.StatusCode)
	return c, u.Scheme + "://" + u.Host
}

// Every file of the console is served by the programs that are shipped, as it lies in the tree.
func TestEveryAssetIsInTheProgram(t *testing.T) {
	conch := running(t)
	c, at := letIn(t, ui(t, conch.Admin))
	const assets = "../../sidecar/console/assets"
	files := 0
	require.NoError(t, fs.WalkDir(os.DirFS(assets), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		want, err := os.ReadFile(assets + "/" + name)
		require.NoError(t, err)
		answer, err := c.Get(at + "/console/" + strings.TrimSuffix(name, "index.html"))
		require.NoError(t, err)
		got, err := io.ReadAll(answer.Body)
		require.NoError(t, err)
		require.NoError(t, answer.Body.Close())
		require.Equal(t, http.StatusOK, answer.StatusCode, name)
		require.Equal(t, string(want), string(got), "%s: bin/conch is not of this tree; make build", name)
		files++
		return nil
	}))
	require.Greater(t, files, 15)
}

func TestTheDoorOfTritonctl(t *testing.T) {
	conch := running(t)
	link := ui(t, conch.Admin)
	c, at := letIn(t, link)
	do := func(c *http.Client, method, path, body string, header map[string]string) (int, string) {
		r, err := http.NewRequest(method, at+path, strings.NewReader(body))
		require.NoError(t, err)
		for k, v := range header {
			if k == "Host" {
				r.Host = v
			} else {
				r.Header.Set(k, v)
			}
		}
		answer, err := c.Do(r)
		require.NoError(t, err)
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		require.NoError(t, err)
		return answer.StatusCode, string(text)
	}
	stranger := &http.Client{}
	t.Cleanup(stranger.CloseIdleConnections)
	for _, test := range []struct {
		name         string
		c            *http.Client
		method, path string
		header       map[string]string
		status       int
	}{
		{"with the cookie", c, "GET", "/v1/models", nil, 200},
		{"without", stranger, "GET", "/v1/models", nil, 401},
		{"the page without", stranger, "GET", "/console/", nil, 401},
		{"the link again", stranger, "GET", strings.TrimPrefix(link, at), nil, 401},
		{"DNS rebinding", c, "GET", "/v1/models", map[string]string{"Host": "evil.example"}, 421},
		{"another origin", c, "POST", "/v1/plan/diff", map[string]string{"Origin": "http://evil.example"}, 403},
		{"another site", c, "POST", "/v1/plan/diff", map[string]string{"Sec-Fetch-Site": "cross-site"}, 403},
		{"another site's DELETE", c, "DELETE", "/v1/plan", map[string]string{"Sec-Fetch-Site": "same-site"}, 403},
		{"another site's EventSource", c, "GET", "/v1/watch", map[string]string{"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"}, 403},
		{"a question", c, "POST", "/v1/plan/diff", map[string]string{"Sec-Fetch-Site": "same-origin"}, 200},
	} {
		status, text := do(test.c, test.method, test.path, "", test.header)
		require.Equal(t, test.status, status, "%s: %s", test.name, text)
	}
	// It only looks, whatever its page would send.
	for _, order := range []struct{ method, path string }{
		{"POST", "/v1/plan/apply"}, {"POST", "/v1/plan/pin"}, {"POST", "/v1/models/order"}, {"POST", "/v1/partitions/restart"}, {"POST", "/v1/gpus/cordon"}, {"PUT", "/v1/policy"},
		{"POST", "/v1/repository/import"}, {"POST", "/v1/repository/rollback"}, {"POST", "/v1/repository/gc"}, {"POST", "/v1/release"}, {"POST", "/v1/calibrate"}, {"POST", "/v1/anything"},
	} {
		status, text := do(c, order.method, order.path, "{}", map[string]string{"Conch-Only-Look": ""})
		require.Equal(t, http.StatusUnprocessableEntity, status, order.path)
		var answer struct {
			Error struct{ Code, Message string }
		}
		require.NoError(t, json.Unmarshal([]byte(text), &answer))
		require.Contains(t, answer.Error.Message, "only looks")
	}
}
