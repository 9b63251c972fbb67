package auth

import (
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"time"
)

// clusterServer is the name in the certificate of every relay of a cluster.
const clusterServer = "cluster.ahp-relay.invalid"

// ClusterTLS returns the TLS configuration of connections between the embedded
// NATS servers of relays with these keys, for both ends. Each end shows a
// certificate that is derived from the token key, and accepts no other: whoever
// has other keys, or none, is refused. It is the same certificate wherever and
// whenever it is made, and does not expire before the keys do.
func (k *Keys) ClusterTLS() (*tls.Config, error) {
	seed, err := hkdf.Key(sha256.New, k.token.Seed(), nil, "ahp-relay cluster v1", ed25519.SeedSize)
	if err != nil {
		return nil, fmt.Errorf("derive the cluster key: %w", err)
	}
	key := ed25519.NewKeyFromSeed(seed)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{CommonName: "relays with token key " + k.tokenID},
		DNSNames:     []string{clusterServer},
		NotBefore:    time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC),
		NotAfter:     time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC), // RFC 5280: no end

		IsCA: true, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("make the cluster certificate: %w", err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("make the cluster certificate: %w", err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(certificate)
	return &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key, Leaf: certificate}},
		RootCAs:      pool, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert,
		ServerName: clusterServer, MinVersion: tls.VersionTLS13,
	}, nil
}
