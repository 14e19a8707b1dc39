// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// writeSecrets makes the cluster's authority, the API server's certificate, the key of service accounts, and an administrator's token.
func (c *Cluster) writeSecrets() error {
	dir := filepath.Join(c.o.Dir, "pki")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	authority := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "conch test cluster"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(1, 0, 0),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	authorityKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	der, err := x509.CreateCertificate(rand.Reader, authority, authority, &authorityKey.PublicKey, authorityKey)
	if err != nil {
		return err
	}
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	server := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "kube-apiserver"}, NotBefore: authority.NotBefore, NotAfter: authority.NotAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		IPAddresses: []net.IP{net.ParseIP(hubAddress), net.ParseIP(service), net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"kubernetes.default.svc", "kubernetes", "localhost"},
	}
	serverKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	if der, err = x509.CreateCertificate(rand.Reader, server, authority, &serverKey.PublicKey, authorityKey); err != nil {
		return err
	}
	accounts, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	files := map[string][]byte{"pki/ca.crt": ca, "pki/apiserver.crt": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
	for name, key := range map[string]*ecdsa.PrivateKey{"pki/apiserver.key": serverKey, "pki/sa.key": accounts} {
		der, err := x509.MarshalECPrivateKey(key)
		if err != nil {
			return err
		}
		files[name] = pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})
	}
	var random [16]byte
	_, _ = rand.Read(random[:]) // it never fails
	token := hex.EncodeToString(random[:])
	files["pki/tokens.csv"] = fmt.Appendf(nil, "%s,admin,1,\"system:masters\"\n", token)
	files["admin.kubeconfig"] = fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters: [{name: conch, cluster: {server: "https://%s", certificate-authority-data: %s}}]
users: [{name: admin, user: {token: %s}}]
contexts: [{name: conch, context: {cluster: conch, user: admin}}]
current-context: conch
`, hubAddress, base64.StdEncoding.EncodeToString(ca), token)
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(c.o.Dir, name), text, 0o600); err != nil {
			return err
		}
	}
	return nil
}
