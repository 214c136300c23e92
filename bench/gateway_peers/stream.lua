dofile(os.getenv("LUA_DIR") .. "/post.lua")
wrk.body = wrk.body:sub(1,-2)..',"stream":true}'
