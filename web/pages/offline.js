// The service worker: keeps everything that a page loads, and answers from it when the network does not.
const KEPT = 'linnet';

self.addEventListener('install', () => self.skipWaiting());
self.addEventListener('activate', event => event.waitUntil(self.clients.claim()));
self.addEventListener('fetch', event => {
  if (event.request.method !== 'GET' || !event.request.url.startsWith(self.registration.scope)) return;
  event.respondWith((async () => {
    const kept = await caches.open(KEPT);
    try {
      const response = await fetch(event.request);
      if (response.ok) event.waitUntil(kept.put(event.request, response.clone()).catch(() => {}));  // no room: not kept
      return response;
    } catch (error) {
      const old = await kept.match(event.request, {ignoreSearch: true});
      if (old === undefined) throw error;
      return old;
    }
  })());
});
