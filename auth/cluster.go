package auth

import (
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"time"
)

// clusterServer is the name in all cluster certificates.
const clusterServer = "cluster.ahp-relay.invalid"

// errOtherCluster reports that a peer does not have this cluster's keys.
var errOtherCluster = errors.New("cluster: failed to verify certificate: it was made with different keys")

// ClusterTLS returns the TLS configuration for connections between the embedded NATS
// servers of relays with the same keys, for both ends. Each end presents a certificate
// derived from its current token key, and accepts certificates derived from any key set.
// All other peers are refused. The same keys always give the same certificate, which
// never expires.
func (k *Keys) ClusterTLS() (*tls.Config, error) {
	certificate, err := k.signing().clusterCertificate()
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		Certificates:         []tls.Certificate{*certificate},
		GetCertificate:       func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return k.signing().clusterCertificate() },
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return k.signing().clusterCertificate() },

		// VerifyConnection replaces the check by certificate authorities, because the
		// accepted keys change over time.
		InsecureSkipVerify: true, ClientAuth: tls.RequireAnyClientCert, VerifyConnection: k.checkClusterPeer,
		ServerName: clusterServer, MinVersion: tls.VersionTLS13,
	}, nil
}

// checkClusterPeer returns an error unless the peer's certificate is derived from one of
// the keys.
func (k *Keys) checkClusterPeer(state tls.ConnectionState) error {
	if len(state.PeerCertificates) == 0 {
		return errOtherCluster
	}
	shown, _ := state.PeerCertificates[0].PublicKey.(ed25519.PublicKey)
	for _, s := range k.sets.Load().all {
		key, err := s.clusterKey()
		if err != nil {
			return err
		}
		if key.Public().(ed25519.PublicKey).Equal(shown) {
			return nil
		}
	}
	return errOtherCluster
}

// clusterKey derives the private key with which relays authenticate to each other.
func (s *keySet) clusterKey() (ed25519.PrivateKey, error) {
	seed, err := hkdf.Key(sha256.New, s.token.Seed(), nil, "ahp-relay cluster v1", ed25519.SeedSize)
	if err != nil {
		return nil, fmt.Errorf("derive the cluster key: %w", err)
	}
	return ed25519.NewKeyFromSeed(seed), nil
}

func (s *keySet) clusterCertificate() (*tls.Certificate, error) {
	key, err := s.clusterKey()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{CommonName: "relays with token key " + s.tokenID},
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
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("make the cluster certificate: %w", err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, nil
}
