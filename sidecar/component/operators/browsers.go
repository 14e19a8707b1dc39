// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package operators

import (
	"log/slog"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/conch-serving/conch/sidecar/admin"
	"github.com/conch-serving/conch/sidecar/config"
	"github.com/conch-serving/conch/sidecar/console"
	consoledoor "github.com/conch-serving/conch/sidecar/console/door"
)

// newBrowsers is the console's door of conch.yaml, in front of the admin API.
func newBrowsers(u config.UI, orders http.Handler, log *slog.Logger) (http.Handler, error) {
	if u.Address == config.Off {
		return http.NotFoundHandler(), nil // nothing listens
	}
	o := consoledoor.Options{
		Home: console.Path, Hosts: slices.Concat(u.Hosts, consoledoor.Loopback()), AllowChanges: u.AllowChanges,
		Certificates: u.TLS.ClientCA != "", Secure: u.TLS.Certificate != "", Cookie: "conch-ui", Now: time.Now, Logger: log,
	}
	if _, port, err := net.SplitHostPort(u.Address); err == nil {
		o.Cookie += "-" + port
	}
	if u.Token != "" {
		token, err := admin.NewToken("listen.ui.token", u.Token)
		if err != nil {
			return nil, err
		}
		o.Token = token.Is
	}
	o.Inside = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := admin.ByToken(r.Context())
		if name := consoledoor.UserOf(ctx).Name; name != "" {
			ctx = admin.By(ctx, name+" (by certificate)")
		}
		orders.ServeHTTP(w, r.WithContext(ctx))
	})
	return consoledoor.New(o), nil
}
