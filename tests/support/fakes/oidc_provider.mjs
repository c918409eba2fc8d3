// A genuine OpenID provider for tests (the npm package `oidc-provider`), in memory, on loopback.
// Usage: node oidc_provider.mjs PORT REDIRECT_URI. Any password is right for the account that a
// browser names. PUT /groups/NAME with a JSON list changes the groups of an account.
import { createServer } from 'node:http';
import Provider from 'oidc-provider';

const [port, redirect] = process.argv.slice(2);
const issuer = `http://127.0.0.1:${port}`;
const groups = new Map();
const provider = new Provider(issuer, {
  clients: [{
    client_id: 'gangline',
    client_secret: 'console-secret',
    redirect_uris: [redirect],
    grant_types: [
      'authorization_code', 'refresh_token', 'urn:ietf:params:oauth:grant-type:device_code',
    ],
  }],
  claims: { openid: ['sub', 'groups', 'preferred_username'], profile: ['name'], email: ['email'] },
  features: {
    deviceFlow: { enabled: true }, devInteractions: { enabled: true }, revocation: { enabled: true },
  },
  issueRefreshToken: async () => true,
  pkce: { required: () => true },
  findAccount: (_, id) => ({
    accountId: id,
    claims: () => ({ sub: id, preferred_username: id, groups: groups.get(id) ?? [] }),
  }),
});
const answer = provider.callback();
createServer((request, response) => {
  if (request.method !== 'PUT') return answer(request, response);
  let body = '';
  request.on('data', (part) => { body += part; });
  request.on('end', () => {
    groups.set(request.url.split('/').pop(), JSON.parse(body));
    response.end();
  });
}).listen(Number(port), '127.0.0.1', () => console.log(issuer));
